// Package charts names what test/integration takes other people's charts from, and with what it
// renders them: go.mod has their versions, go.sum what they consist of.
package charts

import (
	_ "sigs.k8s.io/descheduler/pkg/version" // charts/descheduler is in its module
)
