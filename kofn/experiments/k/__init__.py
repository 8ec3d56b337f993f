"""`kofn experiment k`: is the chosen rule and k the right one?"""
