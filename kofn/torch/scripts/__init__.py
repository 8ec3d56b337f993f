"""What is started as a program: a training to compare, and what hands out a job to its workers."""
