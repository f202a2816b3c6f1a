"""Pretrained transformers of Hugging Face, fine-tuned on GLUE with latent attention weights."""
