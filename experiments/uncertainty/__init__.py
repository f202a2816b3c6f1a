"""Studies of which uncertainty to take: of fine-tuned classifiers, and of a language model's answers."""
