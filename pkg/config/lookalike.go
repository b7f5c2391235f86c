package config

import (
	"bytes"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// This file recognizes files for other systems. Such a file gets a single problem that names its
// probable type, because an error such as "the document has no kind" would not help.

// lookalike returns the probable type of a text that contains no document of Orlop OS; "" if the
// type is unknown.
func lookalike(text []byte) string {
	text = bytes.TrimPrefix(text[:min(len(text), MaxSize)], []byte("\xef\xbb\xbf"))
	if is := typeByFirstLine(text); is != "" {
		return is
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	if doc, err := nextDocument(decoder); err == nil && doc.Content[0].Kind == yaml.MappingNode {
		return typeByFields(doc.Content[0])
	}
	for line := range strings.Lines(string(text)) {
		if is := typeByLine(strings.TrimSpace(line)); is != "" {
			return is
		}
	}
	return ""
}

// typeByFirstLine returns the type of a file by its first line, or "".
func typeByFirstLine(text []byte) string {
	line, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(string(text[:min(len(text), 512)]))), "\n")
	switch line = strings.TrimSpace(line); {
	case strings.HasPrefix(line, "#cloud-config"), strings.HasPrefix(line, "#include"), strings.HasPrefix(line, "content-type: multipart"):
		return "user data of cloud-init (#cloud-config)"
	case strings.HasPrefix(line, "#!ipxe"):
		return "a script of iPXE"
	case strings.HasPrefix(line, "#!"):
		return "a script"
	case strings.HasPrefix(line, "<!doctype html"), strings.HasPrefix(line, "<html"):
		return "an HTML page"
	case strings.HasPrefix(line, "<?xml"), strings.HasPrefix(line, "<domain"):
		return "an XML document"
	case strings.HasPrefix(line, "-----begin "):
		return "a PEM file"
	}
	return ""
}

// typeByLine returns the type of a file if the line occurs only in files of this type, otherwise
// "". It is for files that are not YAML mappings.
func typeByLine(line string) string {
	table, isTable := strings.CutPrefix(line, "[")
	table, closed := strings.CutSuffix(strings.TrimLeft(table, "["), "]")
	name, _, assigned := strings.Cut(line, "=")
	name = strings.TrimSpace(name)
	first, _, _ := strings.Cut(line, " ")
	switch {
	case isTable && closed && (table == "settings" || strings.HasPrefix(table, "settings.")), assigned && strings.HasPrefix(name, "settings."):
		return "settings of Bottlerocket (TOML)"
	case strings.HasPrefix(line, "d-i "):
		return "answers for Debian's installer (preseed)"
	case first == "%packages", first == "%post", first == "rootpw", first == "clearpart", first == "autopart":
		return "a kickstart file"
	case isTable && closed && slices.Contains([]string{"Unit", "Service", "Install", "Match", "Network", "NetDev", "Link"}, table):
		return "a file of systemd"
	case assigned && slices.ContainsFunc([]string{"boot.", "networking.", "services.", "environment.", "system."}, func(set string) bool { return strings.HasPrefix(name, set) }):
		return "a configuration of NixOS"
	case strings.HasSuffix(line, "{") && slices.Contains([]string{"resource", "variable", "provider", "module", "terraform", "locals"}, first):
		return "a file of Terraform"
	case isTable && closed && strings.Trim(table, "]") != "" && strings.IndexFunc(table, func(r rune) bool { return !unicode.IsLetter(r) && !strings.ContainsRune("0123456789._-]\"", r) }) < 0 &&
		strings.ContainsFunc(table, unicode.IsLetter):
		return "a file of TOML or INI"
	}
	return ""
}

// typeByFields returns the type of a YAML document by its top-level fields, or "".
func typeByFields(root *yaml.Node) string {
	has := func(names ...string) bool {
		for _, name := range names {
			if lookup(root, name) == nil {
				return false
			}
		}
		return true
	}
	text := func(name string) string {
		if n := lookup(root, name); n != nil && n.Kind == yaml.ScalarNode {
			return n.Value
		}
		return ""
	}
	version, kind := text("apiVersion"), text("kind")
	group, _, grouped := strings.Cut(version, "/")
	switch {
	case has("machine") && (has("cluster") || text("version") != ""), has("machine", "debug"), has("machine", "persist"), version == "v1alpha1" && kind != "",
		has("machine") && fieldsOf(root, "machine", "type", "token", "ca", "install", "kubelet", "network", "files", "sysctls"):
		return "a machine configuration of Talos Linux"
	case has("context", "contexts") && !has("kind"):
		return "a file of contexts (talosconfig)"
	case version == "v1" && kind == "Config":
		return "a kubeconfig"
	case strings.HasPrefix(group, "kubeadm.k8s.io"), strings.HasPrefix(group, "kubelet.config.k8s.io"), strings.HasPrefix(group, "kubeproxy.config.k8s.io"):
		return "a configuration of kubeadm or the kubelet (" + printable(group) + ")"
	case strings.HasPrefix(group, "k0s.k0sproject.io"), strings.HasPrefix(group, "k0sctl.k0sproject.io"):
		return "a configuration of k0s"
	case strings.HasSuffix(group, "cluster.x-k8s.io"):
		return "an object of Cluster API (" + printable(group) + ")"
	case strings.HasPrefix(group, "k3d.io"), strings.HasPrefix(group, "kind.x-k8s.io"), group == "eksctl.io", strings.HasPrefix(group, "minikube"):
		return "a configuration of a tool for clusters (" + printable(group) + ")"
	case has("ignition"):
		return "a configuration of Ignition (Fedora CoreOS, Flatcar)"
	case has("variant", "version"):
		return "a configuration of Butane (Fedora CoreOS, Flatcar)"
	case has("settings") && fieldsOf(root, "settings", "kubernetes", "host-containers", "motd", "network", "updates"):
		return "settings of Bottlerocket"
	case has("k3os"), has("stages"), has("k3s", "install"), has("p2p"), has("elemental"):
		return "a configuration of k3OS, Kairos or Elemental"
	case has("write-kubeconfig-mode"), has("tls-san"), has("cluster-init"), has("server", "token"), has("node-taint"), has("node-label"), has("cluster-cidr"), has("kubelet-arg"):
		return "a configuration of k3s or RKE2"
	case has("services", "version"), has("services") && !has("kind"):
		return "a file of Docker Compose"
	case has("network") && fieldsOf(root, "network", "ethernets", "renderer", "wifis", "bonds"), has("ethernets"):
		return "a configuration of netplan"
	case has("autoinstall"):
		return "answers for Ubuntu's installer (autoinstall)"
	case has("users", "ssh_authorized_keys"), has("runcmd"), has("write_files"), has("bootcmd"):
		return "user data of cloud-init"
	case has("hosts", "tasks"), has("hosts", "roles"):
		return "a playbook of Ansible"
	case kind != "" && version != "" && (has("metadata") || has("items")) && (grouped && !strings.HasPrefix(version, "orlop") || version == "v1"):
		return "an object of Kubernetes (" + printable(kind) + ")"
	}
	return ""
}

// fieldsOf reports whether the field name of a document is a mapping with at least one of the
// fields.
func fieldsOf(root *yaml.Node, name string, fields ...string) bool {
	inner := lookup(root, name)
	if inner == nil || inner.Kind != yaml.MappingNode {
		return false
	}
	for _, field := range fields {
		if lookup(inner, field) != nil {
			return true
		}
	}
	return false
}

// printable returns a name from a foreign file for a message; it returns "…" for a text that is not
// a plain name, because the text can be a secret.
func printable(name string) string {
	const most = 60
	odd := func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '.' && r != '-'
	}
	if len(name) > most || strings.ContainsFunc(name, odd) {
		return "…"
	}
	return name
}

// lookalikeHint returns the hint for a file with a type of lookalike.
func lookalikeHint(is string) string {
	if strings.HasPrefix(is, "an object of Kubernetes") {
		return "apply it with kubectl, or put it into the manifests of a document of kind Addon"
	}
	return "`orlopctl gen config` writes documents of Orlop OS; `orlopctl docs config/reference` describes every field"
}
