"""What to send where, and what to rent: traffic, policies, fleets, the cheapest that holds, a live gateway."""
