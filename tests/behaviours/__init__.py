"""What flowpg must do as seen from outside, and which test says so: see README.md beside this."""
