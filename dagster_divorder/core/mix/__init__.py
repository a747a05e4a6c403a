"""What is trained on, and how often: held-out documents, mixes, subsets."""
