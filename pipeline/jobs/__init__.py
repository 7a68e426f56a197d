"""The thin entry of each job: options in, a pure function of `pipeline` called, what it did said."""
