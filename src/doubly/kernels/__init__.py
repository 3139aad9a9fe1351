"""Elementwise work that every layer shares, kept apart so that fused versions can stand beside the plain ones."""
