"""Evidence for orders and proxies from small trainings."""
