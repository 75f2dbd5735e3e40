"""How the processes of a job find each other and what they are called."""
