package config

import (
	"strings"
	"testing"
)

// TestLookalike checks that a file of another system gives a single error that names its type,
// whether the file is parsed as a configuration or merged as a patch.
func TestLookalike(t *testing.T) {
	for text, want := range map[string]string{
		"version: v1alpha1\nmachine:\n  type: controlplane\n  token: a\ncluster:\n  id: x\n": "Talos Linux",
		"machine:\n  type: worker\n":                                                                       "Talos Linux",
		"apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: x\n":                                        "Talos Linux",
		"context: x\ncontexts:\n  x: {endpoints: [10.0.0.1]}\n":                                            "talosconfig",
		"#cloud-config\nusers: [default]\n":                                                                "cloud-init",
		"# mine\nruncmd: [ls]\n":                                                                           "cloud-init",
		"Content-Type: multipart/mixed; boundary=\"x\"\n\n--x\n":                                           "cloud-init",
		"apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n":                                 "kubeadm",
		"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n":                          "kubelet",
		"apiVersion: k0sctl.k0sproject.io/v1beta1\nkind: Cluster\nspec: {}\n":                              "",
		"apiVersion: cluster.x-k8s.io/v1beta1\nkind: MachineDeployment\nmetadata: {name: x}\n":             "Cluster API",
		"write-kubeconfig-mode: \"0644\"\ntls-san: [x]\n":                                                  "k3s",
		"server: https://10.0.0.1:9345\ntoken: t\n":                                                        "k3s or RKE2",
		"stages: {boot: []}\n":                                                                             "Kairos",
		"[settings.kubernetes]\ncluster-name = \"x\"\n":                                                    "Bottlerocket",
		"settings.motd = \"hello\"\n":                                                                      "Bottlerocket",
		"[plugins.\"io\".registry]\na = 1\n":                                                               "TOML",
		"{\"ignition\": {\"version\": \"3.4.0\"}}":                                                         "Ignition",
		"variant: fcos\nversion: 1.5.0\n":                                                                  "Butane",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n":                                                 "an object of Kubernetes (Pod)",
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n---\napiVersion: v1\nkind: Service\n": "an object of Kubernetes (Deployment)",
		"apiVersion: v1\nkind: List\nitems: []\n":                                                          "an object of Kubernetes (List)",
		"apiVersion: v1\nkind: Config\nclusters: []\n":                                                     "a kubeconfig",
		"services:\n  web: {image: nginx}\n":                                                               "Docker Compose",
		"network:\n  version: 2\n  ethernets: {}\n":                                                        "netplan",
		"autoinstall: {version: 1}\n":                                                                      "Ubuntu",
		"d-i debian-installer/locale string en_US\n":                                                       "preseed",
		"# x\nlang en_US\nrootpw secret\n%packages\n":                                                      "kickstart",
		"[Match]\nName=eth0\n":                                                                             "systemd",
		"{ pkgs, ... }:\n{\n  networking.hostName = \"x\";\n}\n":                                           "NixOS",
		"#!/bin/sh\necho\n":                                                                                "a script",
		"#!ipxe\nboot\n":                                                                                   "iPXE",
		"<!DOCTYPE html>\n<title>404</title>\n":                                                            "an HTML page",
		"-----BEGIN CERTIFICATE-----\n":                                                                    "a PEM file",
		"\ufeff#cloud-config\n":                                                                            "cloud-init",
	} {
		_, problems := Parse("f.yaml", []byte(text))
		_, err := Merge(nil, []byte(text))
		if want == "" { // a kind of Orlop OS: its fields are validated
			if len(problems) == 0 || strings.Contains(problems.Error(), "looks like") {
				t.Errorf("%q: %v", text, problems)
			}
			continue
		}
		if len(problems) != 1 || !strings.Contains(problems[0].String(), "looks like") || !strings.Contains(problems[0].String(), want) || !strings.Contains(problems[0].String(), "Machine, Cluster, Network, Volume or Addon") {
			t.Errorf("%q: %v; want %q", text, problems, want)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a patch %q: %v; want %q", text, err, want)
		}
	}
}

// TestNoLookalike checks that documents of Orlop OS and unknown files are validated normally.
func TestNoLookalike(t *testing.T) {
	for _, text := range []string{
		"", "kind: Machin\n", "kind: Machine\nmachine: {type: worker}\n", "knd: Machine\n", "- a\n", "text\n", "a: [1\n", "[1]\n", "{}\n", "# only a comment\n",
		"#cloud-config\nkind: Machine\nspec: {}\n", "apiVersion: orlop.dev/v1\nkind: Nothing\nmetadata: {name: x}\n", "spec: {hostname: a}\n",
		"kind: Network\nnetwork: {ethernets: {}}\n", "\x00", strings.Repeat("x: y\n", 10) + "z",
	} {
		if _, problems := Parse("f.yaml", []byte(text)); strings.Contains(problems.Error(), "looks like a") {
			t.Errorf("%q: %v", text, problems)
		}
		if _, err := Merge(nil, []byte(text)); err != nil && strings.Contains(err.Error(), "looks like") {
			t.Errorf("a patch %q: %v", text, err)
		}
	}
}

// TestLookalikeSecret checks that messages contain no content of a foreign file.
func TestLookalikeSecret(t *testing.T) {
	for _, text := range []string{
		"apiVersion: v1\nkind: \"hunter2 is the word\"\nmetadata: {name: x}\n", "apiVersion: \"hunter2 $/v1\"\nkind: Pod\nmetadata: {name: x}\n",
		"machine: {type: worker, token: hunter2}\n",
	} {
		if _, problems := Parse("f.yaml", []byte(text)); len(problems) != 1 || strings.Contains(problems.Error(), "hunter2") {
			t.Errorf("%q: %v", text, problems)
		}
	}
}
