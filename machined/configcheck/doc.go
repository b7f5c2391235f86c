// Package configcheck checks a configuration with the code of Kubernetes, before the configuration
// becomes active (docs/decisions/0111-component-settings.md): a component would not start with an
// expression or a setting that this code rejects. Package config validates without the code of
// Kubernetes; this package finds settings that only package config accepts.
//
// Only the orchestrator links Kubernetes. So a process of the orchestrator checks, as the user of
// the API server.
package configcheck
