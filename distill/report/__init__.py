"""What a job did, as text and as one self-contained page: funnel, data, cost, before and after."""
