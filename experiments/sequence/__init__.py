"""What translation and captioning share: the trained network, its alignments and its uncertainty."""
