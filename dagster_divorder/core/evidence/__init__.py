"""What small trainings tell of orders and of proxies."""
