"""What tests of Penstock, and of programs that use it, need."""
