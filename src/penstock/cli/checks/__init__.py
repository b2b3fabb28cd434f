"""What `penstock doctor` looks at: a module for each subject.

A check is a function that looks at one thing of a `Patient` and returns an `Outcome`. To add one,
write it and name it in the `CHECKS` of its module.
"""
