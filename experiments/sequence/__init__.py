"""Code that translation, captioning, headlines and pretraining share: networks, alignments, uncertainty, files."""
