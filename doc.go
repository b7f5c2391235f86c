// Package orlop is Orlop OS: an immutable operating system with Kubernetes built in. The package
// itself contains the documents of this repository, for `orlopctl docs`. Its tests check the rules
// of the source tree. ARCHITECTURE.md lists the location of each part.
package orlop

import "embed"

// Documents are README.md, ARCHITECTURE.md and the files in docs, by their paths relative to this
// directory. They are embedded here because a package cannot embed files above its own directory.
//
//go:embed README.md ARCHITECTURE.md docs/*.md docs/*/*.md
var Documents embed.FS
