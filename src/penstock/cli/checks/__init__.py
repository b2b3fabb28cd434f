"""The checks of `penstock doctor`: a module for each subject.

A check is a function that examines one part of a `CheckContext` and returns an `Outcome`. To add a
check, write the function and list it in the `CHECKS` of its module.
"""
