"""What k minimises: an objective a file, of the file's name; controller/policy/objective.py has what one is made of."""
