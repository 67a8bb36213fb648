"""Fixed maps of images, of which a network's weights are the only thing that is learnt;
one file each.
"""
