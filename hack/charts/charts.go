// Package charts pins the third-party charts of test/integration and the renderer: go.mod has their
// versions, go.sum their hashes.
package charts

import (
	_ "sigs.k8s.io/descheduler/pkg/version" // its module contains charts/descheduler
)
