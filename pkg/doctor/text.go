package doctor

import (
	"fmt"
	"io"
	"strings"

	"headgate/pkg/status"
)

// WriteText writes findings for people.
func WriteText(w io.Writer, all []Finding) error {
	const indent = 23
	var b strings.Builder
	for _, f := range all {
		line := fmt.Sprintf("%-8s %-13s ", f.State, f.About)
		for _, words := range []string{f.Text, f.Do} {
			if words == "" {
				continue
			}
			if words == f.Do {
				line = strings.Repeat(" ", indent-4) + "do: "
			}
			for _, word := range strings.Fields(words) {
				if len(line)+len(word) > status.Width && strings.TrimSpace(line) != "" {
					b.WriteString(strings.TrimRight(line, " ") + "\n")
					line = strings.Repeat(" ", indent)
				}
				line += status.Printable(word) + " "
			}
			b.WriteString(strings.TrimRight(line, " ") + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
