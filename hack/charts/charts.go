// Package charts pins the renderer and the third-party charts of test/integration. go.mod has their
// versions, and go.sum has their hashes.
package charts

import (
	_ "sigs.k8s.io/descheduler/pkg/version" // this module contains the chart charts/descheduler
)
