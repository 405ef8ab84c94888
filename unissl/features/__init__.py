"""Features of images from a frozen pretrained backbone, extracted once and cached."""
