"""`kofn experiment k`: is the choice of rule and k right?"""
