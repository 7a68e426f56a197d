"""Processes, directories and ports that do not outlive this process.

supervisor  the process that ends programs when their caller ends
supervised  the caller's side of the supervisor: programs and directories
template    a process that forks itself for each run of a program
programs    runs a program to its end
locks       locks between processes
ports       reserves free ports
"""
