"""What a workflow means: a frozen model, its graph, its checks and its written form. Pure."""
