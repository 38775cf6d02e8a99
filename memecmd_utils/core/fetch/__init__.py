"""What is brought from elsewhere: a polite web client, git, archives, and the registry of data sets."""
