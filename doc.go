// Package orlop is Orlop OS: an immutable operating system with Kubernetes built in. The package
// itself holds the documents of this repository, for `orlopctl docs`; its test keeps the rules of
// the house. ARCHITECTURE.md says where everything is.
package orlop

import "embed"

// Documents are README.md, ARCHITECTURE.md and what is in docs, by their paths from here. They are embedded here because a package
// cannot embed what lies above it.
//
//go:embed README.md ARCHITECTURE.md docs/*.md docs/*/*.md
var Documents embed.FS
