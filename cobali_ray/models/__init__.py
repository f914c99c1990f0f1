"""Models: from a name to a file that is here, downloaded or made, and what that says about itself."""
