"""The command line and what it runs. It imports the library as a user does, and the library never imports it."""
