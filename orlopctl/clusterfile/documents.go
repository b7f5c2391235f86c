package clusterfile

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/pkg/config"
)

// Override has the new address of a machine of the file, and optionally its endpoint and
// fingerprint.
type Override struct{ Name, Address, Endpoint, Fingerprint string }

// ParseOverride parses NAME=ADDRESS[,endpoint=HOST:PORT][,fingerprint=sha256:…].
func ParseOverride(text string) (Override, error) {
	name, rest, found := strings.Cut(text, "=")
	parts := strings.Split(rest, ",")
	o := Override{Name: name, Address: parts[0]}
	if !found || name == "" || o.Address == "" {
		return o, fmt.Errorf("%q: expected NAME=ADDRESS[,endpoint=HOST:PORT][,fingerprint=sha256:…]", text)
	}
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(part, "=")
		switch {
		case key == "endpoint" && value != "":
			o.Endpoint = value
		case key == "fingerprint" && value != "":
			o.Fingerprint = value
		default:
			return o, fmt.Errorf("%q: cannot use %q: expected endpoint=HOST:PORT or fingerprint=sha256:…", text, part)
		}
	}
	return o, nil
}

// Move returns a copy of the file with the overrides. It returns an error for an override of an
// unknown machine.
func (f *File) Move(overrides []Override) (*File, error) {
	out := f.clone()
	for _, o := range overrides {
		found := false
		for i := range out.Machines {
			m := &out.Machines[i]
			if m.Name != o.Name {
				continue
			}
			found = true
			m.Address, m.Endpoint, m.Fingerprint = o.Address, o.Endpoint, o.Fingerprint
		}
		if !found {
			return nil, fmt.Errorf("machine %s: the file has no machine of this name", o.Name)
		}
	}
	return out, out.checkMachines()
}

// Endpoint returns the URL of the Kubernetes API, with the address of a machine in place of
// ${NAME}.
func (f *File) Endpoint() (string, error) {
	placed, err := f.insertAddresses()
	if err != nil {
		return "", err
	}
	endpoint, _ := placed.Cluster.Spec["endpoint"].(string)
	if endpoint == "" {
		return "", errors.New("Cluster.spec.endpoint: is missing, expected https://HOST:PORT")
	}
	return endpoint, nil
}

// Documents returns the configuration of a machine: base with the settings of the file. For a
// control-plane machine, base are the generated documents with the keys. For a worker, base are the
// documents with the ticket. Documents validates the result as the machine does.
func (f *File) Documents(m Machine, base []byte) ([]byte, error) {
	patch, err := f.patch(m)
	if err != nil {
		return nil, err
	}
	text, err := config.Merge(base, patch)
	if err != nil {
		return nil, err
	}
	if _, problems := config.Parse(m.Name, text); problems.Err() != nil {
		return nil, problems.Err()
	}
	return text, nil
}

// patch returns the settings of the file for a machine, as documents. A worker gets its Cluster
// document from the control plane, and not from the file.
func (f *File) patch(m Machine) ([]byte, error) {
	placed, err := f.insertAddresses()
	if err == nil {
		err = placed.nameControlPlanes()
	}
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	add := func(kind string, d Document) {
		text, failed := yaml.Marshal(map[string]any{"apiVersion": config.APIVersion, "kind": kind, "metadata": d.Metadata, "spec": d.Spec})
		err = errors.Join(err, failed)
		out.WriteString("---\n")
		out.Write(text)
	}
	for _, own := range placed.Machines {
		if own.Name != m.Name {
			continue
		}
		if own.Machine == nil {
			own.Machine = map[string]any{}
		}
		own.Machine["role"] = own.Role
		add("Machine", Document{Metadata: map[string]any{"name": own.Name}, Spec: own.Machine})
		if len(own.Network) > 0 {
			add("Network", Document{Metadata: map[string]any{"name": "default"}, Spec: own.Network})
		}
		for _, v := range own.Volumes {
			add("Volume", v)
		}
	}
	if m.Role == string(config.RoleControlPlane) {
		add("Cluster", placed.Cluster)
		for _, a := range placed.Addons {
			add("Addon", a)
		}
	}
	return out.Bytes(), err
}

// nameControlPlanes checks that Cluster.spec.controlPlanes has the addresses of all control-plane
// machines, and sets the field if there are several and the file leaves it out.
func (f *File) nameControlPlanes() error {
	planes := f.Role(config.RoleControlPlane)
	named, given := f.Cluster.Spec["controlPlanes"].([]any)
	for _, m := range planes {
		switch {
		case !given && len(planes) > 1:
			named = append(named, m.Address)
		case given && !slices.Contains(named, any(m.Address)):
			return fmt.Errorf("Cluster.spec.controlPlanes: does not name machine %s, which has the role controlplane; add ${%s}", m.Name, m.Name)
		}
	}
	if len(named) > 0 {
		f.Cluster.Spec["controlPlanes"] = named
	}
	return nil
}
