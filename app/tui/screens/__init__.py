"""Whole screens, and the dialogs above them."""
