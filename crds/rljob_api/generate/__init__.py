"""The CustomResourceDefinition and the reference of the spec, generated from the models."""
