"""The development server of Temporal: started, shared by the processes of a home, and ended with them."""
