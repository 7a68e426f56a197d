"""What a user can try: each runs in the tests."""
