package esp

import (
	"bytes"
	"debug/pe"
	"fmt"
	"io"
	"strings"
)

// KubernetesField is the field of a version's os-release with its version of Kubernetes. The boot
// image contains the os-release, too, and the statement of the version signs the boot image.
const KubernetesField = "ORLOP_KUBERNETES_VERSION"

// maxOSRelease bounds the os-release of a boot image, in bytes.
const maxOSRelease = 16 << 10

// KubernetesVersion returns the version of Kubernetes of the version of a boot image; empty if the
// image does not name it, as images before this field.
func KubernetesVersion(uki io.ReaderAt) (string, error) {
	image, err := pe.NewFile(uki)
	if err != nil {
		return "", fmt.Errorf("boot image: cannot read: %w", err)
	}
	section := image.Section(".osrel")
	if section == nil {
		return "", nil
	}
	text := make([]byte, min(maxOSRelease, section.VirtualSize))
	if _, err := io.ReadFull(section.Open(), text); err != nil {
		return "", fmt.Errorf("boot image: cannot read its os-release: %w", err)
	}
	for line := range bytes.Lines(text) {
		if value, is := strings.CutPrefix(strings.TrimSpace(string(line)), KubernetesField+"="); is {
			return value, nil
		}
	}
	return "", nil
}
