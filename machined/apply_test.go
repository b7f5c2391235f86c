package main

import (
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// TestFollows: the authorities of a cluster's data and machines are replaced step by step, or not at all.
func TestFollows(t *testing.T) {
	made := func(life time.Duration, at time.Time) config.Certificate {
		ca, err := pki.NewCAAt("ca", life, at)
		if err != nil {
			t.Fatal(err)
		}
		c, err := config.ParseCertificate(string(ca.CertPEM()))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	now := time.Now()
	a, b, c, expired := made(time.Hour, now), made(time.Hour, now), made(time.Hour, now), made(time.Hour, now.Add(-2*time.Hour))
	none := config.Certificate{}
	list := func(all ...config.Certificate) []config.Certificate { return all }
	for name, step := range map[string]struct {
		was, is         config.Certificate
		accepted, still []config.Certificate
		ok              bool
	}{
		"nothing":                {a, a, nil, nil, true},
		"accept":                 {a, a, nil, list(b), true},
		"issue":                  {a, b, list(b), list(a), true},
		"issue and keep another": {a, b, list(c, b), list(c, a), true},
		"drop":                   {b, b, list(a), nil, true},
		"back":                   {b, a, list(a), list(b), true},
		"at once":                {a, b, nil, nil, false},
		"not accepted before":    {a, b, list(c), list(a), false},
		"not accepted after":     {a, b, list(b), list(c), false},
		"of one that is no more": {expired, b, nil, nil, true},
		"the first":              {none, b, nil, nil, true},
		"removed":                {a, none, nil, nil, false},
	} {
		if err := follows("kubernetes", step.was, step.is, step.accepted, step.still); (err == nil) != step.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
