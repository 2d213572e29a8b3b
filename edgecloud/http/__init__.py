"""What every HTTP server of ours needs: checks at the door, bounded bodies, one error shape, streams that
end well.
"""
