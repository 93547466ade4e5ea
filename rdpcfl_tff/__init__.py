"""Differentially private clustered federated learning (R-DPCFL) on TensorFlow Federated."""
