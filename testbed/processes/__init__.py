"""Processes, directories and ports that do not outlive this process.

keeper    the process that ends programs when their caller ends
kept      the caller's side of it: programs and directories
programs  runs a program to its end
locks     locks between processes
ports     free ports that no other process gets
"""
