package main

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/orlop-os/orlop/imager/secureboot"
	"github.com/orlop-os/orlop/pkg/paths"
	machine "github.com/orlop-os/orlop/pkg/secureboot"
	"github.com/orlop-os/orlop/pkg/slot/esp"
)

// SecureBootProfile describes how a build signs the boot loader and the boot images for UEFI Secure
// Boot. Files are relative to the working directory.
type SecureBootProfile struct {
	// Certificate is a file with a certificate (PEM, RSA) that is in the variable db of the
	// machines' firmware.
	Certificate string `yaml:"certificate"`
	// Key is the file with the private key (PEM) of the certificate. SigningCommand can replace it:
	// a program and its arguments. The program reads a SHA-256 digest (32 bytes) from its standard
	// input, and writes the RSA signature (PKCS #1 v1.5) of the digest to its standard output.
	Key            string   `yaml:"key"`
	SigningCommand []string `yaml:"signingCommand"`
	// Enroll is a directory with PK.auth, KEK.auth and db.auth. If the firmware is in setup mode,
	// the boot loader of a disk enrolls these files. Enroll is empty if the firmware has the
	// certificate already.
	Enroll string `yaml:"enroll"`
	// EnrollMode is the setting secure-boot-enroll of the boot loader. With "manual", an operator
	// selects the keys in the menu of the boot loader. With "if-safe", the default, the boot loader
	// enrolls the keys without an operator in virtual machines, and acts as with "manual" on other
	// machines. With "force", it enrolls them without an operator on all machines. An operator has
	// 15 seconds to prevent this with a key press.
	EnrollMode string `yaml:"enrollMode"`
}

// enrollModes are the values of EnrollMode.
var enrollModes = []string{"manual", "if-safe", "force"}

// check returns an error for the first missing or contradictory value.
func (p *SecureBootProfile) check() error {
	switch {
	case p == nil:
		return nil
	case p.Certificate == "":
		return errors.New("secureBoot.certificate is missing; expected: a file with the certificate of the key that signs the boot images (`imager secureboot` makes one)")
	case (p.Key == "") == (len(p.SigningCommand) == 0):
		return errors.New("secureBoot: either key or signingCommand expected")
	case len(p.SigningCommand) > 0 && p.SigningCommand[0] == "":
		return errors.New("secureBoot.signingCommand: the name of a program expected first")
	case p.EnrollMode != "" && p.Enroll == "":
		return errors.New("secureBoot.enrollMode: there is no directory secureBoot.enroll with keys to enroll")
	case p.EnrollMode != "" && !slices.Contains(enrollModes, p.EnrollMode):
		return fmt.Errorf("secureBoot.enrollMode is %q: %s expected", p.EnrollMode, strings.Join(enrollModes, ", "))
	}
	return nil
}

// signer returns the signer of the profile. It fails if the private key is in out, the directory of
// the artifacts.
func (p *SecureBootProfile) signer(out string) (secureboot.Signer, error) {
	certificate, err := readCertificate(p.Certificate)
	if err != nil {
		return secureboot.Signer{}, fmt.Errorf("secureBoot.certificate: %w", err)
	}
	if len(p.SigningCommand) > 0 {
		return secureboot.FromCommand(certificate, p.SigningCommand), nil
	}
	if inside(out, p.Key) {
		return secureboot.Signer{}, fmt.Errorf("secureBoot.key: %s is in %s, the directory of the artifacts; move the private key elsewhere", p.Key, out)
	}
	text, err := os.ReadFile(p.Key)
	if err != nil {
		return secureboot.Signer{}, fmt.Errorf("secureBoot.key: %w", err)
	}
	s, err := secureboot.FromKey(certificate, text)
	if err != nil {
		return s, fmt.Errorf("secureBoot.key: %s: %w", p.Key, err)
	}
	return s, nil
}

// inside reports whether a file is below a directory.
func inside(dir, file string) bool {
	d, err1 := filepath.Abs(dir)
	f, err2 := filepath.Abs(file)
	return errors.Join(err1, err2) == nil && strings.HasPrefix(f, d+string(filepath.Separator))
}

// inputs returns the files of the profile that the manifest lists with their digests. The private
// key is not among them, because its digest should not be published.
func (p *SecureBootProfile) inputs() (files []string) {
	if p == nil {
		return nil
	}
	files = append(files, p.Certificate)
	if p.Enroll != "" {
		for _, name := range esp.KeyFiles {
			files = append(files, filepath.Join(p.Enroll, name))
		}
	}
	return files
}

// readCertificate reads a file that has a single certificate.
func readCertificate(file string) (*x509.Certificate, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	c, err := secureboot.ParseCertificate(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return c, nil
}

// sign returns a boot loader or a boot image with a signature. Without a key for Secure Boot, it
// returns the image unchanged.
func (b *Build) sign(image []byte) ([]byte, error) {
	if b.signer == nil {
		return image, nil
	}
	signed, err := b.signer.Sign(image)
	if err != nil {
		return nil, fmt.Errorf("Secure Boot: cannot sign: %w", err)
	}
	return signed, nil
}

// loader returns the boot loader of a disk, signed like the boot images. It signs the boot loader
// only once, so all artifacts have the same bytes.
func (b *Build) loader() ([]byte, error) {
	if b.signedLoader != nil {
		return b.signedLoader, nil
	}
	program, err := b.archive.file(loaderPackage, loaderProgram)
	if err != nil {
		return nil, err
	}
	b.signedLoader, err = b.sign(program)
	return b.signedLoader, err
}

// enrollmentFiles returns the contents of the enrollment files by name; nil if the profile has
// none.
func (p *SecureBootProfile) enrollmentFiles() (files map[string][]byte, err error) {
	if p == nil || p.Enroll == "" {
		return nil, nil
	}
	files = map[string][]byte{}
	for _, name := range esp.KeyFiles {
		if files[name], err = os.ReadFile(filepath.Join(p.Enroll, name)); err != nil {
			return nil, fmt.Errorf("secureBoot.enroll: %w", err)
		}
	}
	return files, nil
}

// enrollment returns the contents of the enrollment files by name, and the text of the settings of
// the boot loader.
func (b *Build) enrollment() (files map[string][]byte, settings string, err error) {
	p := b.Profile.SecureBoot
	files, err = p.enrollmentFiles()
	if err != nil || files == nil {
		return nil, esp.LoaderConfigText, err
	}
	if err := b.checkEnrollment(files); err != nil {
		return nil, "", fmt.Errorf("secureBoot.enroll: %s: %w", p.Enroll, err)
	}
	return files, esp.LoaderConfigText + "secure-boot-enroll " + cmp.Or(p.EnrollMode, "if-safe") + "\n", nil
}

// checkEnrollment returns an error if a machine would not start this version after the enrollment.
func (b *Build) checkEnrollment(files map[string][]byte) error {
	for _, name := range esp.KeyFiles {
		content, err := secureboot.Content(files[name])
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if name != "db.auth" {
			continue
		}
		if err := machine.Accept(bytes.NewReader(b.uki), int64(len(b.uki)), content, nil); err != nil {
			return fmt.Errorf("%s: after its enrollment, machines would not start this version: %w", name, err)
		}
	}
	return nil
}

// addEnrollment adds the enrollment files and the settings of the boot loader to `files`, the
// contents of files by path. An installation from a boot image copies these files to the disk.
func (b *Build) addEnrollment(files map[string][]byte) error {
	keys, settings, err := b.enrollment()
	if err != nil || keys == nil {
		return err
	}
	for name, content := range keys {
		files[path.Join(paths.System, name)] = content
	}
	files[paths.SystemLoaderConfig] = []byte(settings)
	return nil
}

// makeSecureBootKeys is the command `imager secureboot`. It makes the keys of a site. If a file
// exists already, it fails and replaces nothing.
func makeSecureBootKeys(args []string) error {
	flags := flag.NewFlagSet("imager secureboot", flag.ContinueOnError)
	out := flags.String("out", "", "`directory` for PK, KEK and db: .key, .crt and .auth of each")
	site := flags.String("name", "Orlop OS", "`name` of the site in the certificates")
	var others []*x509.Certificate
	flags.Func("also", "`file` with a certificate (PEM) that db accepts, too, for example of the maker of a card with firmware (may be repeated)", func(file string) error {
		c, err := readCertificate(file)
		others = append(others, c)
		return err
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *out == "" || *site == "" || flags.NArg() > 0 {
		return errors.New("-out is required, -name must not be empty, and other arguments are not allowed")
	}
	files, err := secureboot.NewKeys(*site, others, time.Now())
	if err != nil {
		return err
	}
	for _, name := range sortedKeys(files) {
		if _, err := os.Lstat(filepath.Join(*out, name)); err == nil {
			return fmt.Errorf("%s: is there already; machines with these keys would start no image that a new key signs: choose another directory", filepath.Join(*out, name))
		}
	}
	if err := os.MkdirAll(*out, 0o700); err != nil {
		return err
	}
	for _, name := range sortedKeys(files) {
		mode := os.FileMode(0o644)
		if filepath.Ext(name) == ".key" {
			mode = 0o600
		}
		if err := renameio.WriteFile(filepath.Join(*out, name), files[name], mode); err != nil {
			return err
		}
	}
	return nil
}
