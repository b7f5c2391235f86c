package main

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// dialTimeout is how long a registry that is configured may take to take a connection, before the next one is asked.
const dialTimeout = "5s"

// registryFiles are the files, by their paths below paths.ContainerdHosts, that tell containerd how to ask registries: a folder for each
// registry that something is said about, and one for all others (containerd's docs/hosts.md). containerd reads them again for every pull.
// Where the machine has neighbours, their mirror is asked before all others.
func registryFiles(all []config.ImageRegistry, near ownMirror) map[string][]byte {
	files := map[string][]byte{}
	for i, r := range all {
		if !r.CA.IsZero() {
			files[authorityFile(i)] = pki.EncodeCert(r.CA.X509())
		}
	}
	var names []string
	for _, r := range all {
		if host, folder := r.Address.Host(); folder == "" {
			names = append(names, host)
		}
		for _, m := range r.Mirrors {
			names = append(names, string(m))
		}
	}
	if near.url != "" {
		names = append(names, string(config.AnyRegistry))
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		folder := name
		if name == string(config.AnyRegistry) {
			folder = "_default"
		}
		files[filepath.Join(folder, "hosts.toml")] = registryFile(name, all, near)
	}
	return files
}

func authorityFile(i int) string { return fmt.Sprintf("authorities/%d.crt", i) }

// registryFile says whom containerd asks for the images of one registry, and last of all how the registry itself is asked.
func registryFile(name string, all []config.ImageRegistry, near ownMirror) []byte {
	var own, mirrors bytes.Buffer
	if near.url != "" {
		fmt.Fprintf(&mirrors, "\n[host.%q]\ncapabilities = [\"pull\", \"resolve\"]\n[host.%q.header]\nAuthorization = %q\n", near.url, near.url, "Bearer "+near.token)
	}
	for i, r := range all {
		host, folder := r.Address.Host()
		url := "https://" + host
		if r.PlainHTTP {
			url = "http://" + host
		}
		if host == name && folder == "" {
			if host != "docker.io" { // whose registry has another name, which containerd knows
				fmt.Fprintf(&own, "server = %q\n", url)
			}
			asking(&own, "header", i, r)
			continue
		}
		if host == name || !slices.ContainsFunc(r.Mirrors, func(m config.RegistryName) bool { return string(m) == name || m == config.AnyRegistry }) {
			continue
		}
		if folder != "" {
			url += "/v2/" + folder
		}
		fmt.Fprintf(&mirrors, "\n[host.%q]\n", url)
		fmt.Fprintf(&mirrors, "capabilities = [\"pull\", \"resolve\"]\ndial_timeout = %q\n", dialTimeout)
		if folder != "" {
			mirrors.WriteString("override_path = true\n")
		}
		asking(&mirrors, fmt.Sprintf("host.%q.header", url), i, r)
	}
	return append(own.Bytes(), mirrors.Bytes()...)
}

// asking says who vouches for a registry, and who asks. The table of headers comes last: what follows a table belongs to it.
func asking(b *bytes.Buffer, header string, i int, r config.ImageRegistry) {
	if !r.CA.IsZero() {
		fmt.Fprintf(b, "ca = %q\n", "../"+authorityFile(i))
	}
	if r.Username != "" {
		basic := base64.StdEncoding.EncodeToString([]byte(r.Username + ":" + r.Password.Reveal()))
		fmt.Fprintf(b, "[%s]\nAuthorization = %q\n", header, "Basic "+basic)
	}
}

// writeRegistries makes a folder hold these files and nothing else.
func writeRegistries(dir string, files map[string][]byte) error {
	for path, content := range files {
		file := filepath.Join(dir, path)
		if have, err := os.ReadFile(file); err == nil && bytes.Equal(have, content) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return fmt.Errorf("registries: cannot make folder: %w", err)
		}
		if err := renameio.WriteFile(file, content, 0o600); err != nil {
			return fmt.Errorf("registries: cannot write: %w", err)
		}
	}
	return tidyRegistries(dir, files)
}

// tidyRegistries removes what is not wanted. An empty folder goes, too: containerd asks nothing of "_default" where a registry has a folder.
func tidyRegistries(dir string, files map[string][]byte) error {
	wanted := map[string]bool{".": true}
	for path := range files {
		wanted[path], wanted[filepath.Dir(path)] = true, true
	}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil || wanted[name] {
			return err
		}
		if err := os.RemoveAll(path); err != nil || !entry.IsDir() {
			return err
		}
		return fs.SkipDir
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("registries: cannot remove what is no longer wanted: %w", err)
	}
	return nil
}
