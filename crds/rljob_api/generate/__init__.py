"""What is generated from the models: the CustomResourceDefinition and the reference of the spec."""
