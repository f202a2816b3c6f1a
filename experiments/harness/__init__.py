"""What all scripts share: command lines, run folders, training, many trainings at once."""
