package main

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/pkg/config"
)

// TestUnusedResolvers checks that resolvers that pods do not use are reported once.
func TestUnusedResolvers(t *testing.T) {
	m := &machine{events: newEventLog()}
	for range 3 {
		m.reportUnusedResolvers([]string{"a", "b"})
	}
	if all := m.events.after(0); len(all) != 2 {
		t.Errorf("events: %v", all)
	}
}

// TestWorkerDocuments checks that the documents of a worker contain all cluster-wide fields, but no
// keys and no fields of a control plane.
func TestWorkerDocuments(t *testing.T) {
	c, problems := config.Parse("reference.yaml", []byte(config.Reference))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	got, want := reflect.ValueOf(membership.WorkerDocuments(c, "w1").Cluster.Spec), reflect.ValueOf(c.Cluster.Spec)
	if keys := got.FieldByName("AcceptedEncryptionKeys"); keys.Len() > 0 {
		t.Error("the worker has keys of Secrets")
	}
	for i := range want.NumField() {
		field := want.Type().Field(i).Name
		if slices.Contains([]string{"PKI", "SecretsEncryptionKey", "AcceptedEncryptionKeys", "Etcd", "Kubernetes"}, field) {
			continue
		}
		if a, b := got.Field(i).Interface(), want.Field(i).Interface(); !reflect.DeepEqual(a, b) {
			t.Errorf("%s: the worker has %v, and the control plane %v", field, a, b)
		}
	}
}

// TestEmptyPluginsOnce checks that no plugin of an external pod network from an earlier boot runs.
func TestEmptyPluginsOnce(t *testing.T) {
	dir := t.TempDir()
	configuration, plugins := filepath.Join(dir, "config.toml"), filepath.Join(dir, "cni/bin")
	plugin := filepath.Join(plugins, "other")
	is := func(when string, there bool) {
		t.Helper()
		if err := emptyPluginsOnce(configuration, plugins); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if _, err := os.Stat(plugin); (err == nil) != there {
			t.Errorf("%s: the plugin: %v; want it there: %t", when, err, there)
		}
	}
	write := func(file string) {
		t.Helper()
		if err := os.WriteFile(file, nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	is("at the first start", false)
	write(plugin)
	is("at the next start", false)
	write(plugin)
	write(configuration)
	is("while the machine runs", true)
}
