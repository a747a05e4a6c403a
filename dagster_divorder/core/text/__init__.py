"""What a text alone tells: how hard it is to predict, how it compresses, and whether it is a near copy."""
