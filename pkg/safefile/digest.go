package safefile

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
)

// SHA256 returns the digest of a file in lower-case hexadecimal, and the size of the file in bytes.
// For a missing file the error is fs.ErrNotExist.
func SHA256(file string) (digest string, size int64, err error) {
	f, err := os.Open(file)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	sum := sha256.New()
	if size, err = io.Copy(sum, f); err != nil {
		return "", 0, fmt.Errorf("%s: cannot read: %w", file, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), size, nil
}
