"""What phase `qualify` is made of: the operators of a step against a reference, extensions, collectives, speed."""
