"""Fixed feature maps of images, one file each: only the network on them is trained."""
